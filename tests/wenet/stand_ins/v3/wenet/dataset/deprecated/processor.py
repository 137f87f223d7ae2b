"""Sets the size of a buffer that newer torchaudio does not have."""

import torchaudio

torchaudio.utils.sox_utils.set_buffer_size(16500)
