// Version of this library.

#include "eagle.h"
#include "eagle_build_info.h"

int32_t eagle_abi_version(void) {
    return EAGLE_ABI_VERSION;
}

const char * eagle_upstream_commit(void) {
    return EAGLE_BUILD_UPSTREAM_COMMIT;
}

const char * eagle_patch_hash(void) {
    return EAGLE_BUILD_PATCH_HASH;
}
