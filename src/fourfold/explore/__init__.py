"""The web page: a server of the commands' documents here, the page's source in `page`, the built page in `dist`."""
