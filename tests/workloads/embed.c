/* Maps a Python library late and runs a script in it:
 *   embed LIBPYTHON SCRIPT ARGUMENT...
 * PYTHONHOME says where the modules that belong to it are. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int (*python)(int, char **) = NULL;
    void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (library)
        *(void **)&python = dlsym(library, "Py_BytesMain");
    if (!python) {
        fprintf(stderr, "embed: %s\n", argc > 2 ? dlerror() : "LIBPYTHON SCRIPT ARGUMENT...");
        return 2;
    }
    return python(argc - 1, argv + 1);
}
