"""Tools for maintainers: the site's generated pages, checks of links, words and wheels."""
