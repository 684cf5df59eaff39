"""Log-linear classifiers: n-grams as features, in tables without collisions, and weights fitted by L-BFGS."""
