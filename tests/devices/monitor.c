// The library that measures devices.
#include <stdio.h>
#include <string.h>

#include "stand_in.h"

enum { NVML_SUCCESS = 0, NVML_NOT_FOUND = 6, NVML_LOST = 15 };

static int handles[DEVICES_MAX];

#define ENTER_DEVICE(name)                              \
  do {                                                  \
    result chosen_ = called(name);                      \
    if (chosen_ != SUCCESS) {                           \
      return chosen_;                                   \
    }                                                   \
    if (is_lost((int)(handle - handles))) {             \
      return NVML_LOST;                                 \
    }                                                   \
  } while (0)

EXPORT result nvmlInit_v2(void) { return called("nvmlInit_v2"); }
EXPORT result nvmlShutdown(void) { return called("nvmlShutdown"); }

EXPORT const char *nvmlErrorString(result code)
{
  switch (code) {
    case NVML_SUCCESS: return "Success";
    case 3: return "Not Supported";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}

EXPORT result nvmlDeviceGetHandleByPciBusId_v2(const char *text, int **handle)
{
  result chosen = called("nvmlDeviceGetHandleByPciBusId_v2");
  unsigned bus;
  if (sscanf(text, "fad0:%x:00.0", &bus) != 1 || bus < 1 || bus > DEVICES_MAX) {
    return NVML_NOT_FOUND;
  }
  *handle = &handles[bus - 1];
  return chosen;
}

// Each measurement of a device differs from those of the others.
EXPORT result nvmlDeviceGetUtilizationRates(int *handle, unsigned rates[2])
{
  ENTER_DEVICE("nvmlDeviceGetUtilizationRates");
  rates[0] = 25 + 10 * (unsigned)(handle - handles);
  rates[1] = 5;
  return NVML_SUCCESS;
}

EXPORT result nvmlDeviceGetMemoryInfo(int *handle, unsigned long long memory[3])
{
  ENTER_DEVICE("nvmlDeviceGetMemoryInfo");
  int device = (int)(handle - handles);
  memory[0] = device_memory(device);
  memory[2] = (300ULL + (unsigned)device) << 20;
  memory[1] = memory[0] - memory[2];
  return NVML_SUCCESS;
}

EXPORT result nvmlDeviceGetPowerUsage(int *handle, unsigned *milliwatts)
{
  ENTER_DEVICE("nvmlDeviceGetPowerUsage");
  *milliwatts = 61500 + 1000 * (unsigned)(handle - handles);
  return NVML_SUCCESS;
}

EXPORT result nvmlDeviceGetPowerManagementLimit(int *handle, unsigned *milliwatts)
{
  ENTER_DEVICE("nvmlDeviceGetPowerManagementLimit");
  *milliwatts = 300000;
  return NVML_SUCCESS;
}

EXPORT result nvmlDeviceGetTotalEnergyConsumption(int *handle, unsigned long long *millijoules)
{
  static unsigned long long energies[DEVICES_MAX];
  ENTER_DEVICE("nvmlDeviceGetTotalEnergyConsumption");
  // Half a joule more at each reading.
  unsigned long long *energy = &energies[handle - handles];
  *energy += 500;
  *millijoules = 1000000 + *energy;
  return NVML_SUCCESS;
}
