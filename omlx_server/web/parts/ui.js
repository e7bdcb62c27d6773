// Preact and htm, by the names under which the rest of the page uses them.
export {
  Component,
  html,
  render,
  useCallback,
  useEffect,
  useErrorBoundary,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "../vendor/htm-preact-3.1.1.js";
