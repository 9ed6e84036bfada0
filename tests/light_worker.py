"""A worker's program with NumPy in Torch's place, which starts in a tenth of the time: for tests of what goes on around it.

Called as a worker's interpreter is, by `stand_in.light_python`; programs that need no more than `x * 2` run on it.
"""

import sys

import stand_in

from fusebench.workers import worker

if __name__ == "__main__":
    sys.modules["fusebench.backends.torch"] = stand_in.StandIn()
    sys.argv[1:] = sys.argv[3:]  # without `-m` and the worker's name
    worker.main()
