"""`python -m fourfold` is the `fourfold` command."""

from fourfold.cli.app import main

if __name__ == "__main__":
    main()
