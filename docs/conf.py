"""The site's configuration: `make docs` writes the generated pages, then builds with warnings as errors."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fourfold import __version__  # noqa: E402
from tools.docs import api_pages, command_pages, run_file_page  # noqa: E402
from tools.docs.docstrings import names_in, to_rst  # noqa: E402
from tools.docs.outward_links import without_outward_links  # noqa: E402

project = "fourfold"
author = "the fourfold authors"
project_copyright = f"2026 {author}"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
root_doc = "index"
highlight_language = "none"
default_role = "code"
pygments_style = "tango"

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_use_type_comments = False
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 160
toc_object_entries = False

html_theme = "pydata_sphinx_theme"
html_title = "fourfold"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/mark.svg"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "fourfold", "image_light": "_static/mark.svg", "image_dark": "_static/mark.svg"},
    "navbar_end": ["theme-switcher"],
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}

REFERENCE = ROOT / "docs" / "reference"


def _on_source(app, name, source):
    """Links out of `docs/` have no page on the site: the path stands beside their text."""
    source[0] = without_outward_links(name, source[0])


def _on_docstring(app, what, name, thing, options, lines):
    lines[:] = to_rst(lines, _NAMES)


_NAMES = names_in(ROOT / "src" / "fourfold")


def setup(app):
    run_file_page.write(REFERENCE / "run_file.md")
    command_pages.write(REFERENCE / "commands.md")
    api_pages.write(ROOT / "src" / "fourfold", REFERENCE / "api")
    app.connect("source-read", _on_source)
    app.connect("autodoc-process-docstring", _on_docstring)
