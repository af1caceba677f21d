/* Operations of ATB in one of its two C++ ABIs, some inside of others, some of which throw.
 *   atb [--abi 0] [--rounds 50] [--throw-every 4] [--inputs 9] [--outputs 2] [--device 1] */
#define _GNU_SOURCE
#include "atb_library.h"

int main(int argc, char **argv)
{
    uint64_t rounds = option(argc, argv, "--rounds", 50);
    uint64_t throw_every = option(argc, argv, "--throw-every", 4);
    int32_t device = (int32_t)option(argc, argv, "--device", 1);
    struct simatb_request linear = {.name = "LinearOperation", .inputs = 3, .outputs = 1};
    struct simatb_request graph = {.name = "a graph, with more than fifteen characters",
                                   .inner = "SelfAttentionOperation",
                                   .intermediate_size = 512,
                                   .inputs = (uint32_t)option(argc, argv, "--inputs", 9),
                                   .outputs = (uint32_t)option(argc, argv, "--outputs", 2)};
    simatb_run_func *run = load_atb(option(argc, argv, "--abi", 0));
    uint64_t thrown = 0;
    acl_begin(device);
    graph.workspace = device_alloc(MIB);
    graph.data = linear.data = device_alloc(MIB);
    for (uint64_t i = 0; i < rounds; i++) {
        graph.workspace_size = 4096 + 2 * i;
        graph.throws = throw_every && i % throw_every == 0;
        graph.escapes = graph.throws && i / throw_every % 2;
        CHECK(run(&linear));
        EXPECT(run(&graph), graph.throws);
        thrown += graph.throws;
    }
    report("begun", 3 * rounds, "ended", 3 * rounds - 2 * thrown, NULL);
    CHECK(aclrtFree(graph.data));
    CHECK(aclrtFree(graph.workspace));
    acl_end(device);
    return 0;
}
