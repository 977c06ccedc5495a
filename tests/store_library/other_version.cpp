// A library of another version of the interface.
#include "kvtwin/store_library.h"

extern "C" const kvtwin_store_functions kvtwin_store_library = {sizeof(kvtwin_store_functions),
                                                                KVTWIN_STORE_LIBRARY_VERSION + 1,
                                                                nullptr,
                                                                nullptr,
                                                                nullptr,
                                                                nullptr,
                                                                nullptr,
                                                                nullptr};
