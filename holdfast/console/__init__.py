"""A site's console: a page on this machine for the people of a site, who need not program."""
