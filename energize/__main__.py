"""`python -m energize`: the command line without its script."""

from energize.cli.main import app

if __name__ == "__main__":
    app()
