/* traceml_lite.probe._core */

#include "core.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "traceml_lite.probe._core",
    .m_doc = "The core of the probe, compiled; core_python says what everything means.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (add_deliveries(module) < 0 || add_fetches(module) < 0))
        Py_CLEAR(module);
    return module;
}
