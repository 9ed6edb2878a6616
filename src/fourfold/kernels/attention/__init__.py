"""The back ends of attention beside those of the model, `model.torch_attention`."""
