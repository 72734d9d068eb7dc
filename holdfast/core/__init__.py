"""Words that every room shares: types, config, errors, files, validation of what clients send.

Nothing here knows of methods, engines or reports.
"""
