"""The floor under all stores: what operating systems differ in."""
