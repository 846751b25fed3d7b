"""Read, merge and rewrite WebAssembly modules and components, as the guest build needs."""
