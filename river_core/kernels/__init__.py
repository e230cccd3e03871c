"""Dense and int4 linear kernels, one file per back end, one signature, a reference each."""
