//! Backing stores: files, block devices, memory; the fault layer.
