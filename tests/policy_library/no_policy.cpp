// A shared library that has no policy.
extern "C" __attribute__((visibility("default"))) int something_else() { return 1; }
