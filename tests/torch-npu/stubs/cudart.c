/* libcudart.so: the registry's torch for x86-64 links CUDA also where no GPU is used. This one says that there is none. */
#define NO_DEVICE 100

int cudaGetDeviceCount(int *count)
{
    *count = 0;
    return NO_DEVICE;
}

int cudaGetDevice(int *device)
{
    *device = 0;
    return NO_DEVICE;
}

const char *cudaGetErrorString(int error)
{
    return "no CUDA-capable device (stub)";
}

const char *cudaGetErrorName(int error)
{
    return "cudaErrorNoDevice";
}

int cudaDriverGetVersion(int *version)
{
    *version = 0;
    return 0;
}

int cudaRuntimeGetVersion(int *version)
{
    *version = 12080;
    return 0;
}

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle[2];
    return handle;
}
