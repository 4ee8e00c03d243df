"""Print what the namespaces of this process and some folders hold, as JSON: `PrivateNode` runs it inside a node."""

import json
import sys
from pathlib import Path

from nodeplug.testing.inventory import Inventory

if __name__ == "__main__":
    json.dump(sorted(Inventory.take(*map(Path, sys.argv[1:])).entries), sys.stdout)
