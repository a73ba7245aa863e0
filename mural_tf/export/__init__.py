"""Export: trained encoders as SavedModels for serving and as TF-Hub modules, with a model card."""
