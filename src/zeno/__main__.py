"""`python -m zeno` is the command `zeno`."""

from zeno.cli import main

if __name__ == "__main__":
    main()
