"""Where the config file is in the home of a test of the command line."""

from omlx_server.settings.layers import USER_CONFIG

CONFIG = USER_CONFIG.removeprefix("~/")
