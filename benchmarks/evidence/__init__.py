"""Tables on real images: what is in them, how their runs are made and kept, how their pages are written."""
