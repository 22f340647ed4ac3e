"""The library of the Serving Workbook."""
