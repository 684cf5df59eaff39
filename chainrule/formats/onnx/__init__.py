"""Export to ONNX: graphs of one step with its state, for onnxruntime, onnxruntime-web and transformers.js."""
