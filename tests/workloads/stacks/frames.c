/* A library that differs from its sister in a constant alone: the size of its frame. */
__attribute__((visibility("default"))) void run(void (*what)(void))
{
    volatile char room[FRAME];
    room[0] = 1;
    what();
    room[FRAME - 1] = room[0];
}
