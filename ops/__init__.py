"""The operators, one folder each: ops/<family>/<op>/. PYPTO_GYM_OPS names further folders of families (as PATH does)."""

import os

__path__ += [folder for folder in os.environ.get("PYPTO_GYM_OPS", "").split(os.pathsep) if folder]
