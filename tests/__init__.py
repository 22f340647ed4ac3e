"""Tests of the workbook. A package, since some libraries install a package of this name, which would win otherwise."""
