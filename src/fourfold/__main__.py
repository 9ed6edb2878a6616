"""`python -m fourfold` is the `fourfold` command."""

from fourfold.cli import main

if __name__ == "__main__":
    main()
