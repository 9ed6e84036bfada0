"""`python -m fusebench` is the command `fusebench`."""

import sys

from fusebench.cli import main

sys.exit(main())
