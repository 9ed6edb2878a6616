"""Takes the pictures of the explore page that tests compare it with: python -m tools.page_pictures [NAME ...]

Without names all of them. Look at what changed before you commit it.
"""

import argparse
import sys

from tests.support.explore_server import CHROMIUM, FLAGS, running
from tests.support.page_pictures import FOLDER, PLACES, THEMES, stored_at, taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLACES)}; default: all")
    names = parser.parse_args().names or list(PLACES)
    unknown = [name for name in names if name not in PLACES]
    if unknown or CHROMIUM is None:
        why = f"{unknown[0]}: allowed: {', '.join(PLACES)}" if unknown else "no Chromium: apt-get install chromium"
        print(why, file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with running() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for name in names:
            for theme in THEMES:
                stored_at(name, theme).write_bytes(taken(browser, address, name, theme))
                print(stored_at(name, theme))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
