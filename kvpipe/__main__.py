"""python -m kvpipe: see kvpipe/front/main.py."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from kvpipe.front.main import main as front

        front()
    except KeyboardInterrupt:  # while modules are loaded; later ones are told where they end
        print("kvpipe: stopped by SIGINT", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
