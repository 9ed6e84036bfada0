"""A worker's program with NumPy in Torch's place, which starts in a tenth of the time: for tests of what goes on around it.

Called as a worker's interpreter is, by `stand_in.light_python`; programs that need no more than `x * 2` run on it. A call that says how
long it takes, by `passes`, takes that long however busy the machine is.
"""

import sys
import time

import stand_in

from fusebench.workers import worker


class Light(stand_in.StandIn):
    def __init__(self):
        super().__init__()
        self.passed, clock = 0.0, time.perf_counter
        time.perf_counter = lambda: clock() + self.passed
        time.perf_counter_ns = lambda: round(time.perf_counter() * 1e9)

    def passes(self, seconds):
        self.passed += seconds


if __name__ == "__main__":
    sys.modules["fusebench.backends.torch"] = Light()
    sys.argv[1:] = sys.argv[3:]  # without `-Pm` and the worker's name
    worker.main()
