"""Makes the folder `demo/` importable: the end-to-end tests run what the demo runs."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
