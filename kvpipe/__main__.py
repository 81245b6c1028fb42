"""python -m kvpipe: see kvpipe/front/main.py."""

from __future__ import annotations

from kvpipe.front.main import main

if __name__ == "__main__":
    main()
