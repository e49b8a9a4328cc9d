"""Float64 NumPy transcriptions of the papers, independent of the library, and the problem they run on."""
