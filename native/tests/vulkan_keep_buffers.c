// A Vulkan layer that destroys no buffer: for Mesa's software device of Debian 12, which uses them afterwards
// (vulkan_destroyed_buffer.c). Their memory is freed as ever. software_vulkan.sh builds it and says how to load it.

#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static VkInstance the_instance;
static PFN_vkGetInstanceProcAddr next_of_instance;
static PFN_vkGetDeviceProcAddr next_of_device;

static VKAPI_ATTR void VKAPI_CALL keep_buffer(VkDevice device, VkBuffer buffer,
                                              const VkAllocationCallbacks * callbacks) {
    (void) device, (void) buffer, (void) callbacks;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo * info,
                                                      const VkAllocationCallbacks * callbacks, VkInstance * instance) {
    VkLayerInstanceCreateInfo * chain = (VkLayerInstanceCreateInfo *) info->pNext;
    while (chain->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || chain->function != VK_LAYER_LINK_INFO) {
        chain = (VkLayerInstanceCreateInfo *) chain->pNext;
    }
    next_of_instance = chain->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    chain->u.pLayerInfo = chain->u.pLayerInfo->pNext;
    const VkResult result =
        ((PFN_vkCreateInstance) next_of_instance(NULL, "vkCreateInstance"))(info, callbacks, instance);
    the_instance = *instance;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo * info,
                                                    const VkAllocationCallbacks * callbacks, VkDevice * device) {
    VkLayerDeviceCreateInfo * chain = (VkLayerDeviceCreateInfo *) info->pNext;
    while (chain->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || chain->function != VK_LAYER_LINK_INFO) {
        chain = (VkLayerDeviceCreateInfo *) chain->pNext;
    }
    const PFN_vkGetInstanceProcAddr next = chain->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_of_device = chain->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    chain->u.pLayerInfo = chain->u.pLayerInfo->pNext;
    return ((PFN_vkCreateDevice) next(the_instance, "vkCreateDevice"))(physical, info, callbacks, device);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char * name) {
    if (strcmp(name, "vkDestroyBuffer") == 0) {
        return (PFN_vkVoidFunction) keep_buffer;
    }
    return strcmp(name, "vkGetDeviceProcAddr") == 0 ? (PFN_vkVoidFunction) device_function
                                                    : next_of_device(device, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance, const char * name) {
    const struct {
        const char * name;
        PFN_vkVoidFunction function;
    } ours[] = {{"vkCreateInstance", (PFN_vkVoidFunction) create_instance},
                {"vkCreateDevice", (PFN_vkVoidFunction) create_device},
                {"vkDestroyBuffer", (PFN_vkVoidFunction) keep_buffer},
                {"vkGetDeviceProcAddr", (PFN_vkVoidFunction) device_function},
                {"vkGetInstanceProcAddr", (PFN_vkVoidFunction) instance_function}};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        if (strcmp(name, ours[i].name) == 0) {
            return ours[i].function;
        }
    }
    return next_of_instance ? next_of_instance(instance, name) : NULL;
}

VK_LAYER_EXPORT VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface * interface) {
    interface->loaderLayerInterfaceVersion = 2;
    interface->pfnGetInstanceProcAddr = instance_function;
    interface->pfnGetDeviceProcAddr = device_function;
    interface->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
