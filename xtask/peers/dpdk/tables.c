// DPDK's tables on one core, with the routes, keys and lookups of `sinew interleave bench` (crates/harness/src/lookups/tables.rs has the recipes).
//
//     tables lpm|lpm6|hash ENTRIES WIDTH SECONDS CORE
//
// A WIDTH of 1 is a look-up at a time; others are look-ups in bulk. Prints {"mops": M} and fails where a look-up finds something else than it should.
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <rte_common.h>
#include <rte_debug.h>
#include <rte_eal.h>
#include <rte_hash.h>
#include <rte_hash_crc.h>
#include <rte_lpm.h>
#include <rte_lpm6.h>
#include <rte_memory.h>

enum { TRACE = 1 << 22, STRETCH = 4096, WIDTH_MAX = 64 };

static uint64_t mixed(uint64_t number) {
    const uint64_t factor = 0xD6E8FEB86659FD93u;
    number = (number ^ number >> 32) * factor;
    number = (number ^ number >> 32) * factor;
    return number ^ number >> 32;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void must(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

// A table has `look_up`, which looks up to WIDTH_MAX keys of the trace up, from `at`, and writes what it found.
struct table {
    void (*look_up)(uint32_t at, uint32_t count, uint64_t *found);
    uint64_t *expected;
};

#define NOTHING UINT64_MAX

static struct rte_lpm *lpm;
static uint32_t *addresses;

static void lpm_bulk(uint32_t at, uint32_t count, uint64_t *found) {
    uint32_t hops[WIDTH_MAX];
    rte_lpm_lookup_bulk(lpm, addresses + at, hops, count);
    for (uint32_t i = 0; i < count; i++)
        found[i] = hops[i] & RTE_LPM_LOOKUP_SUCCESS ? hops[i] & 0xFFFFFF : NOTHING;
}

static void lpm_single(uint32_t at, uint32_t count, uint64_t *found) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t hop;
        found[i] = rte_lpm_lookup(lpm, addresses[at + i], &hop) == 0 ? hop : NOTHING;
    }
}

static struct table lpm_of(uint64_t entries) {
    const struct rte_lpm_config config = {.max_rules = entries + 1, .number_tbl8s = 1 << 16};
    lpm = rte_lpm_create("lpm", SOCKET_ID_ANY, &config);
    must(lpm != NULL, "no memory for the routes");
    for (uint64_t at = 1; at <= entries; at++) {
        const uint64_t draw = mixed(2 * at + 1), of = draw % 1000, more = draw >> 32;
        const uint64_t len = of < 2 ? 8 : of < 132 ? 9 + more % 11 : of < 252 ? 20 + more % 2 : of < 372 ? 22 : of < 462 ? 23 : of < 990 ? 24 : 25 + more % 8;
        must(rte_lpm_add(lpm, (uint32_t)mixed(2 * at), len, draw >> 48) == 0, "a route was refused");
    }
    addresses = malloc(TRACE * sizeof *addresses);
    uint64_t *expected = malloc(TRACE * sizeof *expected);
    must(addresses && expected, "no memory for the keys");
    for (uint32_t i = 0; i < TRACE; i++)
        addresses[i] = (uint32_t)mixed(i + 1);
    lpm_single(0, TRACE, expected);
    return (struct table){.expected = expected};
}

static struct rte_lpm6 *lpm6;
static uint8_t (*addresses6)[16];

static void prefix_of(uint64_t at, uint8_t *bytes) {
    const uint64_t half = rte_cpu_to_be_64(mixed(at));
    memset(bytes, 0, 16);
    memcpy(bytes, &half, 8);
}

static void lpm6_bulk(uint32_t at, uint32_t count, uint64_t *found) {
    int32_t hops[WIDTH_MAX];
    rte_lpm6_lookup_bulk_func(lpm6, addresses6 + at, hops, count);
    for (uint32_t i = 0; i < count; i++)
        found[i] = hops[i] >= 0 ? (uint64_t)hops[i] : NOTHING;
}

static void lpm6_single(uint32_t at, uint32_t count, uint64_t *found) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t hop;
        found[i] = rte_lpm6_lookup(lpm6, addresses6[at + i], &hop) == 0 ? hop : NOTHING;
    }
}

static struct table lpm6_of(uint64_t entries) {
    const struct rte_lpm6_config config = {.max_rules = entries + 1, .number_tbl8s = entries * 5};
    lpm6 = rte_lpm6_create("lpm6", SOCKET_ID_ANY, &config);
    must(lpm6 != NULL, "no memory for the routes");
    uint8_t prefix[16];
    for (uint64_t at = 1; at <= entries; at++) {
        prefix_of(at, prefix);
        must(rte_lpm6_add(lpm6, prefix, 48 + mixed(~at) % 17, at & 0xFFFF) == 0, "a route was refused");
    }
    addresses6 = malloc(TRACE * sizeof *addresses6);
    uint64_t *expected = malloc(TRACE * sizeof *expected);
    must(addresses6 && expected, "no memory for the keys");
    for (uint32_t i = 0; i < TRACE; i++)
        prefix_of(1 + mixed(i + 1) % entries, addresses6[i]);
    lpm6_single(0, TRACE, expected);
    return (struct table){.expected = expected};
}

static struct rte_hash *hash;
static uint64_t *numbers;

static void hash_bulk(uint32_t at, uint32_t count, uint64_t *found) {
    const void *keys[WIDTH_MAX];
    void *data[WIDTH_MAX];
    uint64_t hits;
    for (uint32_t i = 0; i < count; i++)
        keys[i] = numbers + at + i;
    rte_hash_lookup_bulk_data(hash, keys, count, &hits, data);
    for (uint32_t i = 0; i < count; i++)
        found[i] = hits >> i & 1 ? (uint64_t)(uintptr_t)data[i] : NOTHING;
}

static void hash_single(uint32_t at, uint32_t count, uint64_t *found) {
    for (uint32_t i = 0; i < count; i++) {
        void *data;
        found[i] = rte_hash_lookup_data(hash, numbers + at + i, &data) >= 0 ? (uint64_t)(uintptr_t)data : NOTHING;
    }
}

static struct table hash_of(uint64_t entries) {
    // A table that is nearly full refuses some: an eighth more, as the other side has.
    const struct rte_hash_parameters parameters = {.name = "hash", .entries = entries + entries / 8, .key_len = 8, .hash_func = rte_hash_crc, .socket_id = SOCKET_ID_ANY};
    hash = rte_hash_create(&parameters);
    must(hash != NULL, "no memory for the numbers");
    for (uint64_t number = 1; number <= entries; number++) {
        const uint64_t key = mixed(number);
        must(rte_hash_add_key_data(hash, &key, (void *)(uintptr_t)number) == 0, "a number was refused");
    }
    numbers = malloc(TRACE * sizeof *numbers);
    uint64_t *expected = malloc(TRACE * sizeof *expected);
    must(numbers && expected, "no memory for the keys");
    for (uint32_t i = 0; i < TRACE; i++) {
        expected[i] = 1 + mixed(i + 1) % entries;
        numbers[i] = mixed(expected[i]);
    }
    return (struct table){.expected = expected};
}

// The pages of 2 MB that the other side has, where the system gives them to who asks.
static int ask_for_huge_pages(const struct rte_memseg_list *list, const struct rte_memseg *segment, size_t len, void *argument) {
    (void)list, (void)argument;
    madvise(segment->addr, len, MADV_HUGEPAGE);
    return 0;
}

int main(int count, char **words) {
    must(count == 6, "usage: tables lpm|lpm6|hash ENTRIES WIDTH SECONDS CORE");
    const uint64_t entries = strtoull(words[2], NULL, 10);
    const uint32_t width = strtoul(words[3], NULL, 10);
    const double seconds = strtod(words[4], NULL);
    must(entries > 0 && width > 0 && width <= WIDTH_MAX && seconds > 0, "ENTRIES, WIDTH (1 to 64) and SECONDS are more than 0");
    char *eal[] = {words[0], "-l", words[5], "--no-huge", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=error", "-m", "6144"};
    must(rte_eal_init(RTE_DIM(eal), eal) >= 0, "DPDK does not start");
    rte_memseg_contig_walk(ask_for_huge_pages, NULL);

    const bool is_single = width == 1;
    struct table table;
    if (strcmp(words[1], "lpm") == 0) {
        table = lpm_of(entries);
        table.look_up = is_single ? lpm_single : lpm_bulk;
    } else if (strcmp(words[1], "lpm6") == 0) {
        table = lpm6_of(entries);
        table.look_up = is_single ? lpm6_single : lpm6_bulk;
    } else {
        must(strcmp(words[1], "hash") == 0, "a table is lpm, lpm6 or hash");
        table = hash_of(entries);
        table.look_up = is_single ? hash_single : hash_bulk;
    }

    static uint64_t found[STRETCH];
    const uint32_t step = is_single ? WIDTH_MAX : width;
    uint64_t done = 0;
    uint32_t at = 0;
    const double began = now();
    while (now() - began < seconds) {
        if (at + STRETCH > TRACE)
            at = 0;
        for (uint32_t i = 0; i < STRETCH; i += step) {
            const uint32_t some = RTE_MIN(step, STRETCH - i);
            table.look_up(at + i, some, found + i);
        }
        must(memcmp(found, table.expected + at, sizeof found) == 0, "a look-up found something else than it should");
        at += STRETCH;
        done += STRETCH;
    }
    printf("{\"mops\": %.4f}\n", done / (now() - began) / 1e6);
    return 0;
}
