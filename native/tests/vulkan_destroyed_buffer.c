// Does the first Vulkan device leave a destroyed buffer alone? Mesa's software device of 22.3.6 does not: where a
// descriptor set names a destroyed buffer that no shader reads, it counts uses in the memory that was the buffer's, and
// whoever has that memory now is damaged; here the process ends. Vulkan allows such sets, and ggml-vulkan has them: an
// operation binds as many buffers of a set as it needs, and the rest stays as another left it.
// software_vulkan.sh compiles and runs this. Exit code 0: it does.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

static const uint32_t SHADER[] =  // writes to binding 0
#include "first_buffer.spv.inc"
    ;
enum { SIZE = 4096, N_OTHERS = 64 };

static VkDevice device;
static VkQueue queue;
static VkCommandPool commands;
static VkPipelineLayout layout;
static VkPipeline pipeline;
static VkDescriptorSet sets[2];

static void check(VkResult result, const char * what) {
    if (result != VK_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(2);
    }
}
#define CHECK(call) check(call, #call)

static void start(void) {
    const VkApplicationInfo app = {VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo made = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
    VkInstance instance;
    CHECK(vkCreateInstance(&made, NULL, &instance));
    uint32_t n = 1;
    VkPhysicalDevice first;
    vkEnumeratePhysicalDevices(instance, &n, &first);
    check(n == 1 ? VK_SUCCESS : VK_ERROR_DEVICE_LOST, "there is no Vulkan device");
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(first, &properties);
    fprintf(stderr, "%s\n", properties.deviceName);
    const float priority = 1;
    const VkDeviceQueueCreateInfo queues = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                            .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queues};
    CHECK(vkCreateDevice(first, &info, NULL, &device));
    vkGetDeviceQueue(device, 0, 0, &queue);
    const VkCommandPoolCreateInfo pool = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    CHECK(vkCreateCommandPool(device, &pool, NULL, &commands));
}

// Two sets of two buffers, for a shader that knows the first.
static void make_sets(void) {
    const VkDescriptorSetLayoutBinding bindings[] = {
        {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
        {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL}};
    const VkDescriptorSetLayoutCreateInfo two = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = 2,
                                                 .pBindings = bindings};
    VkDescriptorSetLayout of_set;
    CHECK(vkCreateDescriptorSetLayout(device, &two, NULL, &of_set));
    const VkPipelineLayoutCreateInfo info = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1,
                                             .pSetLayouts = &of_set};
    CHECK(vkCreatePipelineLayout(device, &info, NULL, &layout));
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 4};
    const VkDescriptorPoolCreateInfo pool_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 2,
                                                  .poolSizeCount = 1, .pPoolSizes = &size};
    VkDescriptorPool pool;
    CHECK(vkCreateDescriptorPool(device, &pool_info, NULL, &pool));
    const VkDescriptorSetLayout layouts[] = {of_set, of_set};
    const VkDescriptorSetAllocateInfo wanted = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, .descriptorPool = pool,
                                                .descriptorSetCount = 2, .pSetLayouts = layouts};
    CHECK(vkAllocateDescriptorSets(device, &wanted, sets));
}

static void make_pipeline(void) {
    const VkShaderModuleCreateInfo code = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = sizeof SHADER,
                                           .pCode = SHADER};
    VkShaderModule module;
    CHECK(vkCreateShaderModule(device, &code, NULL, &module));
    const VkPipelineShaderStageCreateInfo stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                   .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = module,
                                                   .pName = "main"};
    const VkComputePipelineCreateInfo info = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, .stage = stage,
                                              .layout = layout};
    CHECK(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &pipeline));
}

struct memory {
    VkBuffer buffer;
    VkDeviceMemory memory;
};

static struct memory allocate(void) {
    struct memory m;
    const VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = SIZE,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
    CHECK(vkCreateBuffer(device, &info, NULL, &m.buffer));
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(device, m.buffer, &needs);
    uint32_t type = 0;
    while (!(needs.memoryTypeBits >> type & 1)) {
        type++;
    }
    const VkMemoryAllocateInfo wanted = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needs.size,
                                         .memoryTypeIndex = type};
    CHECK(vkAllocateMemory(device, &wanted, NULL, &m.memory));
    CHECK(vkBindBufferMemory(device, m.buffer, m.memory, 0));
    return m;
}

static void bind(int set, uint32_t binding, struct memory m) {
    const VkDescriptorBufferInfo all = {m.buffer, 0, SIZE};
    const VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                        .dstSet = sets[set],
                                        .dstBinding = binding,
                                        .descriptorCount = 1,
                                        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                        .pBufferInfo = &all};
    vkUpdateDescriptorSets(device, 1, &write, 0, NULL);
}

static void run_with(int set) {
    const VkCommandBufferAllocateInfo wanted = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = commands,
                                                .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    VkCommandBuffer buffer;
    CHECK(vkAllocateCommandBuffers(device, &wanted, &buffer));
    const VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    CHECK(vkBeginCommandBuffer(buffer, &begin));
    vkCmdBindPipeline(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdBindDescriptorSets(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &sets[set], 0, NULL);
    vkCmdDispatch(buffer, 1, 1, 1);
    CHECK(vkEndCommandBuffer(buffer));
    const VkSubmitInfo submit = {VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &buffer};
    CHECK(vkQueueSubmit(queue, 1, &submit, VK_NULL_HANDLE));
    CHECK(vkQueueWaitIdle(queue));
}

int main(void) {
    start();
    make_sets();
    make_pipeline();
    const struct memory used = allocate(), destroyed = allocate(), kept = allocate();
    bind(0, 0, used), bind(0, 1, destroyed);
    bind(1, 0, used), bind(1, 1, kept);
    run_with(0);
    run_with(1);
    vkDestroyBuffer(device, destroyed.buffer, NULL);
    vkFreeMemory(device, destroyed.memory, NULL);
    for (size_t i = 1; i <= N_OTHERS; i++) {  // somebody else gets the driver's memory (calloc would take another)
        memset(malloc(16 * i), 0, 16 * i);
    }
    run_with(0);
    run_with(1);
    puts("it leaves a destroyed buffer alone");
    return 0;
}
