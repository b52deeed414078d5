// `fixed_matmul`: the product of two matrices, exactly and then cast; each comes as a stream of its
// own that stays as it is from one reset to the next, and may stall.
`default_nettype none

module prove_fixed_matmul #(
    parameter int ROWS = 1,
    parameter int INNER = 2,
    parameter int COLUMNS = 1,
    parameter int WIDTH = 1,
    parameter bit IS_TRANSPOSED = 1'b0,
    parameter int OUT_WIDTH = 2,
    parameter int SLOTS = 12,
    parameter int LATENCY = 16
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic [INNER*COLUMNS*WIDTH-1:0] any_matrix,
    input  wire logic data_in_1_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_in_1_ready, data_out_0_valid, lawful;
  logic [WIDTH-1:0] data_in_1;
  logic [OUT_WIDTH-1:0] data_out_0;
  logic [INNER*COLUMNS*WIDTH-1:0] matrix_q;  // in the order in which it comes
  logic [7:0] at_q, place;
  logic [INNER*WIDTH-1:0] tensor;
  logic [COLUMNS*OUT_WIDTH-1:0] result;

  assign data_in_1 = matrix_q[at_q*WIDTH+:WIDTH];

  always_ff @(posedge clk) begin
    if (data_in_1_valid && data_in_1_ready) begin
      at_q <= 32'(at_q) == INNER * COLUMNS - 1 ? '0 : at_q + 1'b1;
    end
    if (rst) begin
      matrix_q <= any_matrix;
      at_q     <= '0;
    end
  end

  lawful_source #(.WIDTH(1)) u_matrix (
      .clk(clk), .rst(rst), .data(1'b0), .valid(data_in_1_valid), .ready(data_in_1_ready),
      .is_lawful(lawful)
  );

  fixed_matmul #(
      .DATA_IN_0_PRECISION_0       (WIDTH),
      .DATA_IN_0_PRECISION_1       (0),
      .DATA_IN_0_IS_SIGNED         (1'b0),
      .DATA_IN_0_TENSOR_SIZE_DIM_0 (INNER),
      .DATA_IN_0_TENSOR_SIZE_DIM_1 (ROWS),
      .DATA_IN_0_PARALLELISM_DIM_0 (1),
      .DATA_IN_1_PRECISION_0       (WIDTH),
      .DATA_IN_1_PRECISION_1       (0),
      .DATA_IN_1_IS_SIGNED         (1'b0),
      .DATA_IN_1_IS_TRANSPOSED     (IS_TRANSPOSED),
      .DATA_OUT_0_PRECISION_0      (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1      (0),
      .DATA_OUT_0_IS_SIGNED        (1'b0),
      .DATA_OUT_0_TENSOR_SIZE_DIM_0(COLUMNS),
      .DATA_OUT_0_PARALLELISM_DIM_0(1),
      .ACC_WIDTH                   (2 * WIDTH + INNER)
  ) dut (
      .*
  );

  for (genvar column = 0; column < COLUMNS; column++) begin : g_column
    logic signed [23:0] sum, x, y;
    int from;
    always_comb begin
      sum = '0;
      for (int k = 0; k < INNER; k++) begin
        from = IS_TRANSPOSED ? column * INNER + k : k * COLUMNS + column;
        x = 24'(tensor[k*WIDTH+:WIDTH]);
        y = 24'(matrix_q[from*WIDTH+:WIDTH]);
        sum = sum + x * y;
      end
    end
    spec_cast #(.IN_FRAC(0), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(0), .OUT_SIGNED(1'b0)) u_spec (
        .x(sum),
        .y(result[column*OUT_WIDTH+:OUT_WIDTH])
    );
  end

  tensor_laws #(
      .WIDTH(WIDTH), .IN_BEATS(INNER), .OUT_BEATS(COLUMNS), .BEAT(OUT_WIDTH), .SLOTS(SLOTS),
      .LATENCY(LATENCY), .GAP(LATENCY + 1)
  ) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(lawful),
      .is_fed   (data_in_0_valid && data_in_1_valid),
      .is_moving(data_in_1_valid),
      .taken    (data_in_0_valid && data_in_0_ready),
      .beat     (data_in_0),
      .tensor   (tensor),
      .place    (place),
      .due      (result[place*OUT_WIDTH+:OUT_WIDTH]),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
