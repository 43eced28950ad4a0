"""The scikit-learn face: estimators that train a federation in one process."""
