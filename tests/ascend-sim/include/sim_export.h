/* Marks what a library shows to its users; everything else is hidden, as in the real libraries. */
#ifndef SIM_EXPORT_H
#define SIM_EXPORT_H
#define SIM_API __attribute__((visibility("default")))
#endif
