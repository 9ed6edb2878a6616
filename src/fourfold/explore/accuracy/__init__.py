"""Published runs as measured, beside their predictions and a null model's, and each as a set-up that the page opens."""
