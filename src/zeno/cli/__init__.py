"""The command line, one module for each group of commands."""

from zeno.cli.app import main as main
