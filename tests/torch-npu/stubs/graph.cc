/* ge::StatusFactory, the one object of the graph engine that MindSpore uses while it is loaded: its static initialisers enter texts
 * of errors. Layout and names as in CANN's public header ge_error_codes.h, with the old C++ ABI of CANN. */
#define _GLIBCXX_USE_CXX11_ABI 0
#include <cstdint>
#include <map>
#include <string>

namespace ge {
class StatusFactory {
public:
    static StatusFactory *Instance();

private:
    std::map<uint32_t, std::string> texts_;
};

StatusFactory *StatusFactory::Instance()
{
    static StatusFactory factory;
    return &factory;
}
} // namespace ge
