// Images from files, the clipboard or a drop, as data URLs that a request can hold.

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const LARGEST = 1_500_000; // bytes of a file that is sent as it is; a body may have 8 MB
const EDGE = 2048;

export const ACCEPT = TYPES.join(",");

export function imageFiles(list) {
  return [...(list ?? [])].filter((file) => TYPES.includes(file.type));
}

/** The image of a file as a data URL; a large one is made smaller. Throws Error where it can't be
 * read. */
export async function asDataUrl(file) {
  if (file.size <= LARGEST) return read(file);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} can't be read as an image.`);
  }
  const scale = Math.min(1, EDGE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.9);
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} can't be read.`));
    reader.readAsDataURL(file);
  });
}

/** Whether a model of /v1/models takes images. */
export function takesImages(model) {
  return !!model?.architecture?.input_modalities?.includes("image");
}
