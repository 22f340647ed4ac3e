"""Browser tests: the notebooks and the widgets in the real JupyterLab."""
