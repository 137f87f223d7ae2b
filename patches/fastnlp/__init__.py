"""fastNLP: the flag for unused parameters, settings that get lost, LayerDrop of its BART and CPT, and first causes."""
