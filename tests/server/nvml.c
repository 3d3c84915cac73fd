/* A stand-in for the driver's library for management (NVML): two GPUs, whose values grow with each look.

Only the first has a counter of energy. The file that NVML_FAIL names ends the process when it is there. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };
typedef struct { unsigned number; unsigned long long looks; } device;
static device devices[] = {{0, 0}, {1, 0}};

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }

const char *nvmlErrorString(int error) { return error == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned number, device **handle) {
    *handle = &devices[number];
    return SUCCESS;
}

int nvmlDeviceGetUUID(device *of, char *uuid, unsigned size) {
    snprintf(uuid, size, "GPU-%u", of->number);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device *of, unsigned rates[2]) {
    const char *failing = getenv("NVML_FAIL");
    if (failing && !access(failing, F_OK)) abort();
    of->looks++;
    rates[0] = 25 + of->number;
    rates[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device *of, unsigned long long total_free_used[3]) {
    total_free_used[0] = 1000;
    total_free_used[1] = 600;
    total_free_used[2] = 400;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device *of, unsigned *milliwatts) {
    *milliwatts = 70500;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimit(device *of, unsigned *milliwatts) {
    *milliwatts = 300000;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(device *of, unsigned long long *millijoules) {
    if (of->number) return NOT_SUPPORTED;
    *millijoules = 5000000 + 1000 * of->looks;
    return SUCCESS;
}
